"""Everything that shows an answer of Steno, recorded and written anew: `make examples`."""

from __future__ import annotations

from tests.e2e import rest_recordings
from tests.e2e.stream_recordings import recorder
from tests.shown_examples import write


def main() -> None:
    with recorder() as made:
        for file, text in made.all().items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    write(rest_recordings.record())


if __name__ == "__main__":
    main()
