"""The estimate with a memory, and the tables it counts with. The only room that knows a tokenizer."""
