"""What a core is made for, the sizes chosen for it, and what follows from both."""
