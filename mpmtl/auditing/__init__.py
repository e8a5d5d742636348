"""Audits: what samples of a mechanism or method prove about the privacy it really gives."""
