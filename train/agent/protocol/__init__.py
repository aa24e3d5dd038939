"""Records between client, agents, and disk, and how they travel; nothing here acts."""
