"""Tables made and evolved as a topic's settings ask, through PyIceberg: no engine needed."""
