"""A corpus of requests and answers: what Steno makes of each, to the byte, so that two trees can be compared.

    python -m lab.benchmarks.corpus record --out DIR [--tree DIR] [--start COMMAND]
    python -m lab.benchmarks.corpus compare A B

Nothing here imports `app`: a Steno of any checkout is started as a process and reached over sockets, and the provider
behind it is a script. A case is a few requests, one after the other, of a tenant of its own. Its file holds what was
sent to Steno, what came to the provider (summary calls of one step are sorted: some are made side by side), and what
came back, without the chunks of HTTP. Only what is of chance or of the clock is replaced: `recording.Placeholders`.
"""
