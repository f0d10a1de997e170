"""The cycle model of the core, exact, and what it says: where cycles go, what wins them back."""
