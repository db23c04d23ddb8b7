"""What is written: from the staging area to the origins, and the checkpoints that come of it."""
