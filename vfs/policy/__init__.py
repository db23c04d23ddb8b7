"""What admins decide: documents of ordered rules, and the pure function that applies them (`engine.decide`)."""
