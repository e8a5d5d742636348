"""Fetch the real data sets: python scripts/fetch_data.py [--data-dir data]."""

import argparse
import sys

from mpmtl.data.files import fetch
from mpmtl.errors import InputError


def main():
    parser = argparse.ArgumentParser(description="Fetch the real data sets and check them.")
    parser.add_argument("--data-dir", default="data", help="where to put them (default: data)")
    try:
        for path in fetch(parser.parse_args().data_dir):
            print(path)
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
