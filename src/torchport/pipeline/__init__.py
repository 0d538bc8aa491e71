"""The main road: capture, prove, save. The only room that knows every other."""
