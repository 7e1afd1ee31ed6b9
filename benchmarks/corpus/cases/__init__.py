"""The cases, in groups: each group is served by a Steno with settings of its own."""

from __future__ import annotations

from benchmarks.corpus.cases import compacted, options, rest, troubles, untouched

GROUPS = (*compacted.GROUPS, *rest.GROUPS, *troubles.GROUPS, *options.GROUPS, *untouched.GROUPS)
