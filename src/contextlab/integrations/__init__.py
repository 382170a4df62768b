"""Bridges to other libraries; each needs its library only when used."""
