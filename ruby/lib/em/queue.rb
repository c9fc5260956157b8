# frozen_string_literal: true

module EventMachine
  # A queue that calls back with its elements, in order, on the reactor's thread.
  class Queue
    def initialize
      @items = []
      @waiting = []
    end

    # Calls back with the next element, when there is one.
    def pop(*args, &block)
      callback = EventMachine.Callback(*args, &block)
      EventMachine.schedule do
        if @items.empty?
          @waiting << callback
        else
          callback.call(@items.shift)
        end
      end
      nil
    end

    def push(*items)
      EventMachine.schedule do
        @items.concat(items)
        @waiting.shift.call(@items.shift) until @items.empty? || @waiting.empty?
      end
    end
    alias << push

    # Only the reactor's thread sees an up-to-date answer.
    def empty?
      @items.empty?
    end

    def size
      @items.size
    end

    def num_waiting
      @waiting.size
    end
  end
end
