async def test_first(database, owner):
    async with database.read() as tx:
        print(
            await tx.fetch_dicts(
                "select table_schema, table_name from information_schema.tables where table_schema='placet'"
            )
        )


async def test_b(database):
    pass


async def test_c(database):
    pass


async def test_d(database):
    pass
