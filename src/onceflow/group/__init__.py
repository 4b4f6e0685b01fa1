"""Consumer groups: pure state machines and the records they are a fold over."""
