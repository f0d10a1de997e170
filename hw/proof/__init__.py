"""Proofs, by SAT, that every style of the array computes the same sums."""
