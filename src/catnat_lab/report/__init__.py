"""Our results beside the paper's: `table` judges them, `figures` draws, `page` writes. Nothing of one experiment."""
