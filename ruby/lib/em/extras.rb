# frozen_string_literal: true

# What EventMachine does not have. Nothing changes for a program that does not ask for it.
#
#   EM.precise_timers = true      timers are not rounded down to milliseconds
#   EM.happy_eyeballs = true      EM.connect looks names up without blocking, and tries their addresses in parallel
#   EM.measure_times = true       EM.stats has times, from the next EM.run on
#   EM.stats                      what the reactor has counted, as a hash
#   EM.prometheus_stats           the same as text
#   EM.watchdog(0.1) { |slow| }   names the line that blocks the reactor
#   connection.limit_outbound     bounds what is queued, and calls outbound_drained
module EventMachine
  # A send would queue more bytes than `limit_outbound` allows. Nothing of it was queued.
  class OutboundFull < RuntimeError; end

  # A callback that blocks the reactor: its kind, for how many seconds, and where it is. `place` is the line of the program, or nil if
  # the callback has returned before its stack could be read.
  SlowCallback = Struct.new(:kind, :seconds, :place, :backtrace) do
    def to_s
      "EventMachine: a callback (#{kind}) has been blocking the reactor for #{seconds.round(3)} s, at #{place || 'an unknown place'}"
    end
  end

  # The directory of this library, whose lines are not the program's.
  LIBRARY = "#{__dir__}/"
  private_constant :LIBRARY

  class << self
    # Calls back, on a thread of its own, when a callback takes longer than a number of seconds, while it still runs. Without a block,
    # prints a warning. Call it while the reactor runs.
    #
    # The thread gets its turn when the callback sleeps, waits, or has run for a time slice of Ruby, 100 ms.
    def watchdog(seconds, &report)
      reader, writer = IO.pipe
      set_watchdog(seconds.to_f, writer.fileno)
      Thread.new { watch_for_slow_callbacks(reader, report || ->(slow) { warn slow.to_s }) }
    ensure
      writer&.close
    end

    private

    def watch_for_slow_callbacks(reader, report)
      while (line = reader.gets)
        kind, seconds = line.split
        backtrace = @reactor_thread&.backtrace || []
        place = backtrace.find { |frame| !frame.start_with?(LIBRARY) && !frame.start_with?('<internal') }
        # Only the library is on the stack if the callback has returned.
        running = backtrace.index { |frame| frame.match?(/in [`'](EventMachine\.)?run_machine/) } != 0
        report.call(SlowCallback.new(kind, Float(seconds), running ? place : nil, backtrace))
      end
    ensure
      reader.close
    end
  end

  class Connection
    # Called when the queue has become shorter than the low mark, after it was longer than the high one.
    def outbound_drained; end

    # Bounds what is queued on this connection, in bytes. While more than `high` bytes are queued, `outbound_full?` is true, and the
    # connection is not read from; when it is `low` again, `outbound_drained` is called. A send that would queue more than `most`
    # raises OutboundFull. nil takes a bound away.
    def limit_outbound(high, low: nil, most: nil)
      @outbound_high = high
      low ||= high && high / 2
      EventMachine.set_outbound_marks(@signature, low.to_i, high.to_i, most.to_i)
    end

    def outbound_full?
      @outbound_high ? get_outbound_data_size > @outbound_high : false
    end
  end
end
