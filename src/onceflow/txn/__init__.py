"""The transaction coordinator: pure decisions and the records they are a fold over."""
