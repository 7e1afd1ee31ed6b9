"""The lab's own reading of each format, for the simulator, the judge and recordings.

Nothing here knows `app/wire`: an oracle that shared code with what it judges would be none.
"""
