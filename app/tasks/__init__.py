"""Work beside the requests: threads with turns for every tenant, tasks the application owns, work shared by a crowd."""
