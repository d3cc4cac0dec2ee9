"""Raw items: queued items as plain values, written to disk when there is no time to encode them."""
