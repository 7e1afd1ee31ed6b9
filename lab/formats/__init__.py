"""The lab's own reading of each format, for the simulator, the judge and recordings.

Nothing here knows `app/formats`: an oracle that shared code with what it judges would be none.
"""
