"""What proves a record to somebody who has only its head: a Merkle tree, signed heads, keys. Knows no workspace."""
