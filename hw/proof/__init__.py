"""Proofs, by SAT, that a row of the array computes the same sums in every style."""
