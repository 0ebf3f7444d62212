"""Price feeds: other people's catalogues of offers, read strictly into ours. One file a feed."""
