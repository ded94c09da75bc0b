"""`python -m tools.reference`: writes the pages, and ends with 1 if something is undocumented."""

import sys

from tools.reference import FOLDER, PAGES, page_of


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    missing = []
    for page in map(page_of, PAGES):
        (FOLDER / page.name).write_text(page.text)
        missing += [f"{page.name}: {each}" for each in page.undocumented]
    for each in missing:
        print(f"undocumented: {each}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
