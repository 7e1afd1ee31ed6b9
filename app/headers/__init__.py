"""HTTP headers: what passes up and down, whose key a request carries, what proxies and other Stenos said."""
