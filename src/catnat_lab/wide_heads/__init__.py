"""Wide heads in language models of source code: how good they are beside softmax, by steps and by seconds."""
