"""Facts with their sources: devices, systems, links, networks, offers, models. Nothing here predicts."""
