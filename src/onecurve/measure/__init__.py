"""From torch modules to nouns: blocks, what flows between them, tensor layouts, the profile."""
