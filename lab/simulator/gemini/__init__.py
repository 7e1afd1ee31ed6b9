"""generateContent, as Google serves it."""
