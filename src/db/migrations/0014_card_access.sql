-- Who may read the agent's card: 'public', 'private', or NULL, as card.access says.
ALTER TABLE workspaces ADD COLUMN card_access TEXT;
