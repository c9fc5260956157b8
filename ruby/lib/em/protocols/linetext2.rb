# frozen_string_literal: true

module EventMachine
  module Protocols
    # Lines, and in between texts of a known or unknown length. A handler defines `receive_line` and `receive_binary_data`.
    module LineText2
      # The longest line and text that programs should expect.
      MaxLineLength = 16 * 1024
      MaxBinaryLength = 32 * 1024 * 1024

      def receive_data(data)
        lt2_start unless @lt2_mode
        @lt2_input << data
        # A callback that passes data back, or a second call from inside of a callback, is handled by the loop that runs.
        return if @lt2_busy

        @lt2_busy = true
        begin
          nil while lt2_step
        ensure
          @lt2_busy = false
        end
      end

      # Splits at a string, or at what a regular expression matches. By default at the end of a line.
      def set_delimiter(delimiter)
        lt2_start unless @lt2_mode
        @lt2_delimiter = delimiter
        @lt2_searched = 0
      end

      # Changes to lines. The data comes before everything that was not processed yet.
      def set_line_mode(data = '')
        lt2_start unless @lt2_mode
        @lt2_mode = :lines
        @lt2_searched = 0
        @lt2_input.prepend(data) unless data.empty?
        receive_data('') unless @lt2_busy
      end

      # Changes to text, of this many bytes or without an end. A text with a length arrives as a whole.
      def set_text_mode(size = nil)
        lt2_start unless @lt2_mode
        if size.nil?
          @lt2_mode = :text
          @lt2_size = nil
        elsif size.zero?
          set_line_mode
          receive_end_of_binary_data
        else
          @lt2_mode = :text
          @lt2_size = size
        end
      end
      alias set_binary_mode set_text_mode

      # The rest of a text with a length that the peer did not send to its end.
      def unbind(*)
        return unless @lt2_mode == :text && @lt2_size && !@lt2_input.empty?

        rest = @lt2_input
        @lt2_input = +''
        receive_binary_data(rest)
        receive_end_of_binary_data
      end

      def receive_line(_line); end

      def receive_binary_data(_data); end

      def receive_end_of_binary_data; end

      private

      def lt2_start
        @lt2_mode = :lines
        @lt2_delimiter ||= nil
        @lt2_input = String.new(encoding: Encoding::BINARY)
        @lt2_searched = 0
        @lt2_size = nil
        @lt2_busy = false
      end

      # Delivers one line or text. Returns whether there may be another.
      def lt2_step
        return false if @lt2_input.empty?

        @lt2_mode == :lines ? lt2_line : lt2_text
      end

      def lt2_line
        delimiter = @lt2_delimiter || "\n"
        found = @lt2_input.index(delimiter, @lt2_searched)
        unless found
          # A delimiter of several bytes may have begun. A regular expression may need any of what came before.
          @lt2_searched = delimiter.is_a?(String) ? [@lt2_input.size - delimiter.size + 1, 0].max : 0
          return false
        end
        width = delimiter.is_a?(String) ? delimiter.size : Regexp.last_match(0).size
        line = @lt2_input.slice!(0, found + width)[0, found]
        @lt2_searched = 0
        line.chomp!("\r") unless @lt2_delimiter
        receive_line(line)
        true
      end

      def lt2_text
        if @lt2_size.nil?
          text = @lt2_input
          @lt2_input = String.new(encoding: Encoding::BINARY)
          receive_binary_data(text)
          return true
        end
        return false if @lt2_input.bytesize < @lt2_size

        text = @lt2_input.slice!(0, @lt2_size)
        # The callbacks may set another mode.
        @lt2_mode = :lines
        @lt2_searched = 0
        receive_binary_data(text)
        receive_end_of_binary_data
        true
      end
    end
  end
end
