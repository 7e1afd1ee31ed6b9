"""The transport of relayed requests: HTTP/1.1 over connections of our own. Decision 6 says why."""
