"""What a run talks to and plans, and what its errors mean."""
