"""`python -m grafana` writes every dashboard's JSON to grafana/dashboards."""

from __future__ import annotations

from grafana.catalogue import write


def main() -> None:
    for file in write():
        print(f"{file} ({file.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
