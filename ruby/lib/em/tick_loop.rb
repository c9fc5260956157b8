# frozen_string_literal: true

module EventMachine
  # Calls a block in every pass of the reactor, until it returns :stop.
  class TickLoop
    def initialize(*args, &block)
      @work = EventMachine.Callback(*args, &block)
      @stops = []
      @stopped = true
    end

    # Calls back once when the loop is stopped, at once if it is.
    def on_stop(*args, &block)
      if @stopped
        EventMachine.Callback(*args, &block).call
      else
        @stops << EventMachine.Callback(*args, &block)
      end
    end

    def stop
      @stopped = true
      @stops.shift.call until @stops.empty?
    end

    def stopped?
      @stopped
    end

    def start
      raise ArgumentError, 'the loop is running already' unless @stopped

      @stopped = false
      schedule
      self
    end

    private

    def schedule
      EventMachine.next_tick do
        next if @stopped

        if @work.call == :stop
          stop
        else
          schedule
        end
      end
    end
  end
end
