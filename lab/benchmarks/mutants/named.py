"""Mutants that no test is to kill, each with the reason why. A line that is written anew is a new mutant."""

from __future__ import annotations

TUNED = "a tuned number: tests hold that there is a bound, not which one"

NAMED = {
    "4a4b69045d5fe378": "history/messages.py, `grown`: what is not handed on is worked out when it is asked for",
    "8ca4a0c27eea5497": "summary/maker.py, `_blank`: the tokens are counted once the text is there",
    "3e00e228bd8865d5": "recall/index.py, `scores`: a word that no passage holds adds nothing to any",
    "d6daa773141af374": "recall/recall.py, `_room_for`: nothing fits into no tokens, nor into less than none",
    "0ff9d9bfbd2b1bc3": "history/own_words.py, `_first_document`: a search from before the beginning begins there",
    "f8fd7c6dcf0ce401": "recall/question.py, `_read`: a text of exactly 4,000 characters gets a line end in its middle",
    "8590aeb7c36caca1": "view/mask.py, `SHAPES_VERSION`: it is only compared with what was stored with it",
    "602b4e9c8f626c3a": "store/wakeups.py, `_keep`: no clock is looked at in that very moment",
    "43e4d4f983602bd7": "proxy/exchange.py, `_over`: what is surely small is spared a look that finds nothing",
    "f20b691b6d5abe1f": f"store/lease_calls.py, `COMMIT_AT_SECONDS`: {TUNED}",
    "e61b0186c1972eef": f"history/secrets.py, `JUDGED`: {TUNED}",
    "b8883def62c2437e": "store/wakeups.py, `__init__`: somebody waits before it is read, and sets it when leaving",
    "4e06aeb08d3bdbec": f"store/remains.py, `PAUSE_SECONDS`: {TUNED}",
    "428faf32f9743637": "store/word_index.py, `wanted_terms`: both lists are of the same words",
    "443ccf331084aaae": f"compaction/compactor.py, `_imagine`: {TUNED}",
    "8134f0b6c9c7ee99": "store/database.py, `execute`: a local setting behind a `COMMIT` changes nothing",
    "9ad1e90ea79d8db2": "store/partitions.py, `_tend`: it matters where the rest holds more rows than a test can make",
    "e229a2389768973b": "store/wakeups.py, `_keep`: a connection that is left earlier is made anew, and tells the same",
    "019486cf45dcffec": f"store/calls.py, `REST_SECONDS`: {TUNED}",
    "ecad61cb76816baf": f"store/database.py, `CONNECT_SECONDS`: {TUNED}",
    "08cf880024e601a1": f"tokens/calibration.py, `PICTURES`: {TUNED}",
    "21f125aae45c8852": f"tokens/pictures.py, `UNKNOWN_SIZE`: {TUNED}",
    "767a91bfa44e81d3": f"recall/words.py, `LONGEST_WORD`: {TUNED}",
    "ac38449cdd6ed366": f"store/archive.py, `BATCH_BYTES`: {TUNED}",
    "e156e25bdbf9742b": f"compaction/paces.py, `REMEMBERED_SECONDS`: {TUNED}",
    "1b50d8f1f5e594ef": "proxy/archiving.py, `_strands`: to know more places only spares a second write of the same",
}
"""Reason by the mutant's key."""
