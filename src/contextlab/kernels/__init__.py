"""Operations that no standard library has: one folder each, with a plain-torch reference that is the truth."""
