"""The platforms that come with TFS: how each recognizes, describes and reads its versions."""
