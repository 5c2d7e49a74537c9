// Package owner decides who owns an object that is being created.
//
// It is pure: no clock, no client, no logger. Everything it needs to know
// arrives as a Request, a Policy, a Target and Facts; everything it wants done
// leaves as a Decision. A fact that could not be found out is Unknown, which is
// the zero value, and has a documented stance in every rule.
//
// The rules are those of the design, section 4: append only, never a placeholder
// UID, never a guess, never blockOwnerDeletion, never anything but CREATE.
package owner
