"""Lets respx see httpx2. Loaded by `-p` before respx's own entry point, which imports httpx: a conftest is too late."""

import httpx2

httpx2.alias_httpx()
