"""The sections of the settings, by subject. Each field says in a sentence what it is for."""
