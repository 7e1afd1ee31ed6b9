"""The cases, in groups: each group is served by a Steno with settings of its own."""

from __future__ import annotations

from lab.benchmarks.corpus.cases import compacted, formats, options, rest, troubles, untouched

GROUPS = (*compacted.GROUPS, *formats.GROUPS, *rest.GROUPS, *troubles.GROUPS, *options.GROUPS, *untouched.GROUPS)
