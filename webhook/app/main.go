package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	// ExitOK follows a signal.
	ExitOK = 0
	// ExitFailed follows something that was to be done once and failed.
	ExitFailed = 1
	// ExitUsage follows flags that make no sense.
	ExitUsage = 2
	// ExitCore follows when the core stopped for any reason: the kubelet restarts
	// the container, and the log has the reason. 70 is EX_SOFTWARE of sysexits.h.
	ExitCore = 70
)

// version is set when a release is built: -ldflags "-X …/webhook/app.version=v0.1.0".
var version = "devel"

// usageError is an error of the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Main runs a command until it ends, or SIGINT or SIGTERM comes, and returns the
// exit code.
func Main(cmd *cobra.Command, args []string, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd.SetArgs(args)
	cmd.SetErr(stderr)
	cmd.Version = version
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	ran, err := cmd.ExecuteContextC(ctx)
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(stderr, "%s: %v\nRun '%s --help' for all flags.\n", cmd.Name(), err, ran.CommandPath())
		return ExitUsage
	case ran != cmd:
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", ran.CommandPath(), err)
		return ExitFailed
	default:
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", cmd.Name(), err)
		return ExitCore
	}
}

// noArgs refuses arguments, which are mostly misspelt flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}
