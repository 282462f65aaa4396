"""Data that tests and the demo load into a broker, and how they compare what came back."""
