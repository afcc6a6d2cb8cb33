"""`python -m placet.cli`, where the script `placet` is not on the path."""

from placet.cli import main

if __name__ == "__main__":
    main()
