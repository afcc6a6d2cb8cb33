"""Names of the demo's customers, in the scripts that customers write: given names and family names by script."""

NAMES: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    # script, given names, family names, countries
    (
        "Latin",
        ("Zoë", "Björn", "Łucja", "François", "Jürgen", "Íñigo", "Aoife", "Søren", "Dağhan", "Þóra", "Ngọc", "Mary"),
        (
            "Müller",
            "Nuñez",
            "Ó Conchúir",
            "Żółkowski",
            "Sørensen",
            "Çelik",
            "Lefèvre",
            "Guðmundsdóttir",
            "Smith",
            "Trần",
        ),
        ("Germany", "Spain", "Ireland", "Poland", "Denmark", "France", "Iceland", "United Kingdom", "Netherlands"),
    ),
    (
        "Cyrillic",
        ("Олена", "Дмитрий", "Јелена", "Богдан", "Светлана", "Георги"),
        ("Шевченко", "Петрова", "Ђорђевић", "Ковальчук", "Иванов", "Стоянов"),
        ("Ukraine", "Serbia", "Bulgaria"),
    ),
    (
        "Greek",
        ("Ελένη", "Γιώργος", "Άννα", "Νίκος"),
        ("Παπαδοπούλου", "Οικονόμου", "Βλάχος", "Καραγιάννη"),
        ("Greece", "Cyprus"),
    ),
    (
        "Arabic",
        ("فاطمة", "محمد", "ليلى", "يوسف"),
        ("الحسيني", "بن علي", "المصري", "حدّاد"),
        ("Egypt", "Morocco", "Lebanon"),
    ),
    ("Hebrew", ("נועה", "יעל", "אורי"), ("כהן", "לוי", "מזרחי"), ("Israel",)),
    ("Han", ("小明", "雅婷", "浩然", "思涵"), ("王", "李", "陳", "歐陽"), ("Taiwan", "Singapore")),
    ("Kana", ("さくら", "ひろし", "ユウコ"), ("佐藤", "たかはし", "コバヤシ"), ("Japan",)),
    ("Hangul", ("지우", "민준", "서연"), ("김", "이", "박", "남궁"), ("South Korea",)),
    ("Devanagari", ("अनन्या", "राहुल", "प्रिया"), ("शर्मा", "पाटील", "श्रेष्ठ"), ("India", "Nepal")),
    ("Tamil", ("கவிதா", "அருண்"), ("முருகன்", "செல்வம்"), ("India", "Sri Lanka")),
    ("Thai", ("สมชาย", "กาญจนา"), ("ใจดี", "สุขสวัสดิ์"), ("Thailand",)),
)
FAMILY_FIRST = frozenset({"Han", "Kana", "Hangul"})
NO_SPACE = frozenset({"Han", "Hangul"})
