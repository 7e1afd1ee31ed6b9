"""Passed on: the marks by which a text says that what follows is not its sender's.

Clients without a way to send results as such write them into user messages, each in its own words: what those words
are, as clients write them, is listed in `passed_on.toml`. So is what announces a document or a mail. `own_words` reads
the tables. Everything in them is a pattern without regard to case, and stands at the start of a line unless it says
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.wordings import read_wordings

_WORDINGS = read_wordings(__package__, "passed_on.toml")

OWN_TAGS = frozenset[str](_WORDINGS["own_tags"])
"""Tags that editors put around what somebody typed."""
ANSWER_TAG = "answer"
"""Tag of Cline and Roo around the answer to a question that the assistant asked: it counts behind that alone."""
RESULT_TAGS = frozenset[str](_WORDINGS["result_tags"])
"""Tags around results: a message that begins with one is a result."""
CLIENT_TAGS = RESULT_TAGS | frozenset[str](_WORDINGS["client_tags"])
"""Tags that clients put around what they add: what is announced inside of them goes no further than their end. One
that nothing ends goes on to the end of the message, wherever it stands on its line, if its name is of two words."""

RESULTS: Mapping[str, Sequence[str]] = _WORDINGS["results"]
"""Beginnings of results, by whose words they are. A result goes on to the end of the message."""
RESULT_ENDS: Sequence[str] = _WORDINGS["result_ends"]
"""Ends of a result that nothing stands before (SWE-agent): all of the message is one."""
UNMISTAKABLE: Sequence[str] = _WORDINGS["unmistakable"]
"""Beginnings of results that only programs write."""
CALLS: Mapping[str, Sequence[str]] = _WORDINGS["calls"]
"""Calls of a tool in an assistant's text, by whose client reads them. With regard to case, anywhere."""
STEMS: Sequence[str] = _WORDINGS["stems"]
"""Words of which nearly every mark has one: for what is too long to be read."""

OWN_SENTENCES: Sequence[str] = _WORDINGS["own_sentences"]
"""Sentences before one of the own tags, in a part of its own or after a note."""
NOTES: Sequence[str] = _WORDINGS["notes"]
"""Notes of the client on itself, all of the part but for own tags."""
TYPED: str = _WORDINGS["typed"]
"""Text around words that the user typed while the assistant worked: all of a part."""
CLIENT_LINES: str = _WORDINGS["lines"]
"""Beginning of a line that the client writes of its own."""
CONTINUED: str = _WORDINGS["continued"]
"""Beginning of a part that is the client's summary of an earlier session, and never announces the parts behind it."""
DENIED = "The user denied this operation."
"""Text in place of a result: nothing was done, and the next part may say why."""
ASKING_TOOLS = frozenset[str](_WORDINGS["asking_tools"])
"""Tools whose results are what the user said."""
WRITING_TOOLS = frozenset[str](_WORDINGS["writing_tools"])
"""Tools whose results begin with words of the client, whatever else is in them."""

DOCUMENTS: Mapping[str, Sequence[str]] = _WORDINGS["documents"]
"""Announcements of somebody else's words, by what those are. They go on to the end of the message."""
HEADING_WORDS: str = _WORDINGS["heading_words"]
"""Words that make a document of what follows, in a line that ends with a colon."""
RULE_WORDS: str = _WORDINGS["rule_words"]
"""Words that keep such a line from announcing a document."""
