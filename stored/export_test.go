package stored

// RefuseStored lets tests look at the part of Check that has a bound.
var RefuseStored = Start.refuseStored
